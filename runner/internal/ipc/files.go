package ipc

import "encoding/json"

// FileOp is one file method of docs/protocol.md ("file.read" …) with its
// params as they came from the driver. Where the method moves data, one
// descriptor comes with it: the read end of a pipe for file.write and
// file.put_tree, the write end for file.read and file.get_tree. The agent
// closes it when it is done; the reply comes after the last byte was written
// or read. Fast path: file.read of at most InlineLimit bytes may be sent
// without a descriptor and file.write with Inline; the bytes then travel here.
type FileOp struct {
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Workdir Bytes           `json:"workdir"` // where relative paths begin
	Inline  []byte          `json:"inline,omitempty"`
	Small   bool            `json:"small,omitempty"` // file.read: answer inline
	// Committed says that the data of file.write or file.put_tree end with one
	// more byte, 1, sent when the driver's END has arrived. A pipe that closes
	// without it was broken off (cancel, lost driver): file.write then keeps
	// nothing and answers `canceled`. Not used with Inline.
	Committed bool `json:"committed,omitempty"`
}

// FileResult is the answer: Result as in docs/protocol.md, Inline the bytes of
// a small read. TooLarge is set when a read asked for Small exceeds InlineLimit:
// nothing was read, ask again with a descriptor.
type FileResult struct {
	Result   json.RawMessage `json:"result"`
	Inline   []byte          `json:"inline,omitempty"`
	TooLarge bool            `json:"too_large,omitempty"`
}

// InlineLimit is the most that travels inside a message.
const InlineLimit = 64 << 10
