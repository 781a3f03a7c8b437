// Package testsandbox is for tests of other packages: it runs a part of them as the first process of
// namespaces of its own, which stand for a sandbox.
package testsandbox
