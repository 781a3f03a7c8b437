// Package budget bounds the memory that a runner keeps for its tenants: command output, and data on
// the way to the driver.
//
// Each holder of such bytes opens an Account, reserves bytes before it keeps them and releases them
// afterwards. When the budget is used up, the function set by OnPressure frees memory. History
// remembers the processes that ended last.
package budget
