package channel

func withShortPath(path string, use func(short string) error) error { return use(path) }
