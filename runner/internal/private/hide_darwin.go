package private

// Hide does nothing: no engine has directories here.
func Hide(string) error { return nil }
