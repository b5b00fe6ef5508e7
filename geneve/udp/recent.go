package udp

import "math/bits"

// Recent counts how many of the last requests on a path were answered. The zero value has had none.
type Recent struct {
	answered uint32 // a bit for each of the last requests, the newest one's lowest
	requests int    // number of valid bits
	all      uint64 // all requests
	missed   uint64 // how many of all had no answer when the next one was sent
}

// recentRequests is how many requests are remembered.
const recentRequests = 32

// Request records a request.
func (r *Recent) Request() {
	if r.requests > 0 && r.answered&1 == 0 {
		r.missed++
	}
	r.all++
	r.answered <<= 1
	r.requests = min(r.requests+1, recentRequests)
}

// Forget forgets the requests before the last n, but not in Totals.
func (r *Recent) Forget(n int) { r.requests = min(r.requests, n) }

// Answer records the answer to the request after which followed others were sent.
func (r *Recent) Answer(followed int) {
	if followed >= 0 && followed < r.requests {
		r.answered |= 1 << followed
	}
}

// Lost returns how many of the recent requests had no answer, and their number. The last request
// counts only once it has an answer or a successor.
func (r *Recent) Lost() (lost, of int) {
	answered, of := r.answered, r.requests
	if of > 0 && answered&1 == 0 {
		answered, of = answered>>1, of-1
	}
	return of - bits.OnesCount32(answered&(1<<of-1)), of
}

// Totals returns the number of requests, and how many had no answer when the next one was sent.
// Both only grow.
func (r *Recent) Totals() (requests, missed uint64) { return r.all, r.missed }
