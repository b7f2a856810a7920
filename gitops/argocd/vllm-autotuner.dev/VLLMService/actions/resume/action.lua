if obj.metadata.annotations ~= nil then
  obj.metadata.annotations["vllm-autotuner.dev/pause"] = nil
end
return obj
