module hermes-exec/floor

go 1.25
