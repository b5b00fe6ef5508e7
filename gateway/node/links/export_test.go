package links

// WithoutKernel has s take the kernel for one without Geneve links.
func (s *Set) WithoutKernel() { s.kernel = func() bool { return false } }
