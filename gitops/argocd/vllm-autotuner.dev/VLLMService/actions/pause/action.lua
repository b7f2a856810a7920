if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["vllm-autotuner.dev/pause"] = "true"
return obj
