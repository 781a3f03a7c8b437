package ipc

import "encoding/json"

// FileOp is one file method of docs/protocol.md ("file.read" …) with the driver's params. A method
// that moves data has one descriptor: the read end of a pipe for file.write and file.put_tree, the
// write end for file.read and file.get_tree. The agent closes it; its reply comes after the last
// byte. Fast path: a small file.read needs no descriptor, and the content of a small file.write
// travels in Inline.
type FileOp struct {
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Workdir Bytes           `json:"workdir"` // where relative paths begin
	User    string          `json:"user,omitempty"`
	Inline  []byte          `json:"inline,omitempty"`
	Small   bool            `json:"small,omitempty"` // file.read: answer inline
	// Committed: the data of file.write or file.put_tree end with one more byte, 1, which is sent
	// when the driver's END has arrived. A pipe that closes without it was aborted (cancel, lost
	// driver): file.write then keeps nothing and answers `canceled`. Not used with Inline.
	Committed bool `json:"committed,omitempty"`
}

// FileResult is the answer: Result as in docs/protocol.md, Inline the bytes of a small read. With
// TooLarge a read with Small exceeded InlineLimit and read nothing: ask again with a descriptor.
type FileResult struct {
	Result   json.RawMessage `json:"result"`
	Inline   []byte          `json:"inline,omitempty"`
	TooLarge bool            `json:"too_large,omitempty"`
}

// InlineLimit is the most data that travels inside a message.
const InlineLimit = 64 << 10
