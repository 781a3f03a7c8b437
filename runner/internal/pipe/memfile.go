package pipe

import (
	"fmt"
	"os"
)

// createUnlinked creates a file without a name on systems without memory files.
func createUnlinked(name string) (*os.File, error) {
	file, err := os.CreateTemp("", "hermes-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := file.Chmod(0o644); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}
