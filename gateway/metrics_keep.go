package gateway

// kept reports what is kept for the next gateway, and what this one could not use of what the one before has kept.
func (p *page) kept(k *keeper) {
	k.mu.Lock()
	defer k.mu.Unlock()
	saved := 0.0
	if !k.saved.IsZero() {
		saved = float64(k.saved.UnixMilli()) / 1000
	}
	p.one(gauge, "state_saved_timestamp_seconds", "When connections were last written to the state folder; 0 = never.", saved)
	p.family(gauge, "state_not_restored", "Connections that the gateway before has left and this one has not, by reason; of blocks that cannot be read, the blocks.", "reason")
	for _, m := range k.restored.missing() {
		p.add(float64(m.n), m.why)
	}
	p.one(counter, "state_save_failures_total", "Writes to the state folder that failed.", float64(k.failures))
}
