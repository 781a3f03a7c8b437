module hermes-exec/probe

go 1.25
