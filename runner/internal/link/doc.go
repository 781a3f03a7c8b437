// Package link is the runner's end of a slot's agent.
//
// Start starts the agent and sends it its Setup. Agent.Call sends requests, each sort of work on
// lanes of its own. When the agent ends, Config.OnDeath reports why.
package link
