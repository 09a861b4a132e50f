module github.com/spillgate/spillgate/clients/go

go 1.23
