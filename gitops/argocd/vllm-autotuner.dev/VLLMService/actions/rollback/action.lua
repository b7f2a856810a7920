-- Any new value triggers it, so the time does.
local os = require("os")
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["vllm-autotuner.dev/rollback"] = os.date("!%Y-%m-%dT%XZ")
return obj
