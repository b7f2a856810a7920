-- By the id of the recommendation that is shown: should it change meanwhile, nothing happens.
if obj.status == nil or obj.status.recommendation == nil then
  error("there is no recommendation")
end
if obj.metadata.annotations == nil then
  obj.metadata.annotations = {}
end
obj.metadata.annotations["vllm-autotuner.dev/reject"] = obj.status.recommendation.id
return obj
