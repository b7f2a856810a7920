"""An operator among hostile neighbours, on the real control plane: what each attack costs it, and what an honest change
beside them comes to.

`attacks` lists what a tenant may do, `tenant` is who does it, `scraping` is the Prometheus that scrapes him, `cost`
watches the operator's process, and `story` plays one honest change beside some of the attacks.
"""
