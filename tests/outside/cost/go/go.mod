module cost

go 1.23

require github.com/spillgate/spillgate/clients/go v0.0.0

replace github.com/spillgate/spillgate/clients/go => ../../../../clients/go
