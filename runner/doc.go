// Command runner works inside a sandbox for hermes-exec. It holds the slots of one sandbox with
// their commands, files and sessions, and speaks docs/protocol.md with the driver.
//
// `runner serve` is the long-running process; `runner attach` connects a byte stream to it; `runner
// agent` is the process that serve starts in each slot. The other subcommands answer one question,
// or manage runners that outlive their driver.
package main
