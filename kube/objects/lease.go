package objects

// A Lease is the content of a Lease. Missing fields are zero.
type Lease struct {
	Holder      string `json:"holderIdentity"`
	Seconds     int32  `json:"leaseDurationSeconds"`
	Renewed     string `json:"renewTime"` // as its holder wrote it
	Transitions int64  `json:"leaseTransitions"`
}

// ReadLease reads a Lease. It returns "" or the fault, like the other functions that read a kind.
func ReadLease(o *Object) (l Lease, fault string) {
	fault = ReadPart("spec", o.Spec, &l)
	return l, fault
}
