package rtnl

// A Failure remembers the last error of a repeated attempt, so that the caller can log when the
// error starts, changes and ends. The zero value has not failed.
type Failure struct{ last string }

// Changed records the outcome of an attempt, and reports whether it differs from the outcome of the
// previous attempt.
func (f *Failure) Changed(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != f.last
	f.last = text
	return changed
}
