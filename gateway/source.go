package gateway

import "culvert/nat/rules"

// ReadyWhen makes /readyz wait for what the gateway learns from. It must be called before Run.
func (g *Gateway) ReadyWhen(ready func() bool) { g.source = ready }

// Put makes r the resource of key in the rules that the next CommitRules publishes. An error
// belongs to the key, which keeps what it had.
func (g *Gateway) Put(key rules.Key, r rules.Resource) error { return g.engine.Put(key, r) }

// Delete removes the resource of key from them.
func (g *Gateway) Delete(key rules.Key) { g.engine.Delete(key) }

// CommitRules publishes what was put and deleted.
func (g *Gateway) CommitRules() { g.engine.CommitRules() }
