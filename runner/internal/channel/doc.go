// Package channel is the runner's end of the streams to its driver (docs/protocol.md).
//
// Endpoint authenticates streams and holds conversations, which have credit in both directions and
// outlive a stream. Attach is the `runner attach` subcommand, which connects a stream to the
// serving runner. The package does not know the methods: it passes requests to its Owner.
package channel
