package gateway

import (
	"culvert/gateway/control"
	"culvert/nat/rules"
)

// A Teacher is what a gateway learns from in place of a file.
type Teacher interface {
	Ready() bool                  // /readyz waits for it
	Resources() control.Resources // what has come of them
}

// LearnFrom makes the gateway tell how it stands with t. It must be called before Run.
func (g *Gateway) LearnFrom(t Teacher) { g.teacher = t }

// Put makes r the resource of key in the rules that the next CommitRules publishes. An error
// belongs to the key, which keeps what it had.
func (g *Gateway) Put(key rules.Key, r rules.Resource) error { return g.engine.Put(key, r) }

// Delete removes the resource of key from them.
func (g *Gateway) Delete(key rules.Key) { g.engine.Delete(key) }

// CommitRules publishes what was put and deleted.
func (g *Gateway) CommitRules() { g.engine.CommitRules() }
