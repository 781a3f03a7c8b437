package accounts

import (
	"os"
	"strconv"
	"strings"

	"hermes-exec/runner/internal/bounded"
)

// HomeOf returns the user's home, or HOME of the image. By default an engine sets HOME for the user
// as whom it starts the runner; that value does not count.
func HomeOf(user User) string {
	set := os.Getenv("HOME")
	self, err := LookupUser(strconv.Itoa(os.Geteuid()))
	if set == "" || err != nil || set == self.Home {
		return user.Home
	}
	return set
}

// FileWithLine returns the content of a file of the sandbox with one more line.
func FileWithLine(path, line string) string {
	data, err := bounded.ReadWhole(path, bounded.TableSize)
	if err != nil {
		return ""
	}
	content := string(data)
	if content != "" && !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	return content + line
}
