"""What anyio leaves open: event loops, tasks that belong to no block, streams, the blocking portal."""
