package private

func isUnmapped(int) bool { return false }
