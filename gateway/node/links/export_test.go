package links

// WithoutKernel makes s treat the kernel as one without Geneve links.
func (s *Set) WithoutKernel() { s.kernel = func() bool { return false } }
