package gateway

import "culvert/nat"

// ReadyWhen makes /readyz wait for what the gateway learns from. It must be called before Run.
func (g *Gateway) ReadyWhen(ready func() bool) { g.source = ready }

// Put makes r the resource of key in the rules that the next CommitRules publishes. An error
// belongs to the key, which keeps what it had.
func (g *Gateway) Put(key nat.Key, r nat.Resource) error { return g.engine.Put(key, r) }

// Delete removes the resource of key from them.
func (g *Gateway) Delete(key nat.Key) { g.engine.Delete(key) }

// CommitRules publishes what was put and deleted.
func (g *Gateway) CommitRules() { g.engine.CommitRules() }
