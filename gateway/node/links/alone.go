package links

// Alone makes the Set carry all links itself, even if the kernel has Geneve links, for callers
// without another agent that makes kernel links. It must be called before Run.
func (s *Set) Alone() { s.kernel = func() bool { return false } }
