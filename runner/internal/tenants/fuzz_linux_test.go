package tenants

import "testing"

// A tenant writes its own environment.
func FuzzEnvironment(f *testing.F) {
	f.Add("7.boot.slot")
	f.Add(".boot.slot")
	f.Fuzz(func(t *testing.T, value string) { _, _ = parseMark(value, "boot.slot") })
}
