module hermes-exec/runner

go 1.25
