-- A stage that runs saves and ends first.
obj.spec.suspend = true
return obj
