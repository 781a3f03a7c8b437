package private

func hasNoNumber(int) bool { return false }
