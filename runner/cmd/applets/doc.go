// Command applets contains the small programs of the conformance suite. The suite puts this file
// into a slot and starts it there as `applets NAME ARG…`, so that its checks run the same in an
// image without a shell or coreutils. Nothing in the product uses it.
package main
