package main

import (
	"os"
	"testing"
)

func TestVariablesOfTheEngineAreTakenOut(t *testing.T) {
	for name, value := range map[string]string{"ENGINE_BIND": "/host", "ENGINE": "1", "LANG": "C", "PROMPT": "> "} {
		t.Setenv(name, value)
	}
	unsetVariables([]string{"ENGINE_*", "LANG=C", "PROMPT=other"})
	for name, want := range map[string]bool{"ENGINE_BIND": false, "ENGINE": true, "LANG": false, "PROMPT": true} {
		if _, got := os.LookupEnv(name); got != want {
			t.Errorf("%s is there: %v", name, got)
		}
	}
}
