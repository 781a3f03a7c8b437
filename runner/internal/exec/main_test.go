package exec_test

import (
	"testing"

	"hermes-exec/runner/internal/testdriver"
)

func TestMain(m *testing.M) { testdriver.Main(m) }
