"""The VLLMService API: models of spec and status, validation, conditions and the generated CRD.

* `spec`, `status`, `service`: the models, and parsing an object or reporting why it is invalid.
* `conditions`: types, reasons, how they change, and the kstatus rules.
* `crd`: the CustomResourceDefinition, generated from the models.
"""
