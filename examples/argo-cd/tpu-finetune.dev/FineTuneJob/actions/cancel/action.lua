-- Cannot be taken back.
obj.spec.cancel = true
return obj
