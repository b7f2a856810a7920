"""VLLMService as users and the operator see it: models of spec and status, conditions, the generated CRD.

* `spec`, `status`, `service`: the models, and reading an object or saying why it cannot be read.
* `conditions`: types, reasons, how they change, and the kstatus rules.
* `crd`: the CustomResourceDefinition, generated from the models.
"""
