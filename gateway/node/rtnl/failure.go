package rtnl

// A Failure is the error of what is tried again and again, so that it can be logged when it begins, when it becomes another one and when it ends. The
// zero value has not failed.
type Failure struct{ last string }

// Changed takes the outcome of one more try, and reports whether it differs from that of the try before.
func (f *Failure) Changed(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed := text != f.last
	f.last = text
	return changed
}
