// Package probe has both ends of the checks of culvert verify: Serve answers, Ask asks. They run in
// pods without any privilege, and know nothing of Kubernetes.
//
// Over TCP, an asker sends a line with the token of its run. The server answers with a line that
// has the address it sees and its own name, and then returns every byte. Over UDP, a question is
// the token, '?', and a number; the answer is the same with '!', and as long. A server answers
// neither answers nor anybody without the token, so two servers cannot keep each other busy.
package probe

import "time"

// Port is where servers listen, TCP and UDP.
const Port = 9199

// tokenBytes is the length of a token, which is text.
const tokenBytes = 16

// A Task is what one asker does.
type Task struct {
	Token   string   `json:"token"`
	Targets []Target `json:"targets"`
	// Patience is how many seconds a target may take to answer for the first time: routes and
	// policies take effect some time after a pod starts.
	Patience int `json:"patience"`
}

// NoDNS is the error of a Target with a name, in a cluster whose pods find no name at all.
const NoDNS = "no DNS"

// The errors of a Target with a Zone, if the cluster's DNS does not serve the zone, and if it fails
// there.
const (
	NoZone  = "no zone"
	Failing = "SERVFAIL"
)

// A Target is a server, or an address or name that leads to one.
type Target struct {
	Name    string `json:"name"`
	Address string `json:"address"` // host:port; with a Zone a name alone
	// MTU is the largest IP packet that should pass, in bytes. 0: only the first answer is wanted.
	MTU int `json:"mtu,omitempty"`
	// Bytes is how much is sent there and back over TCP.
	Bytes int64 `json:"bytes,omitempty"`
	// Zone is that of a name of which only the addresses are asked for. It is one of multi-cluster
	// Services; "": the target is asked to answer.
	Zone string `json:"zone,omitempty"`
}

// An Answer is the result for one Target.
type Answer struct {
	Name   string        `json:"name"`
	Error  string        `json:"error,omitempty"` // why there was no answer at all
	Server string        `json:"server,omitempty"`
	Seen   string        `json:"seen,omitempty"` // this asker's address to the server; of a name, its addresses
	RTT    time.Duration `json:"rtt,omitempty"`  // of the TCP handshake
	UDP    *UDP          `json:"udp,omitempty"`
	Size   *Size         `json:"size,omitempty"`
	Bulk   *Bulk         `json:"bulk,omitempty"`
}

// UDP is the result of the datagram test.
type UDP struct {
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
}

// Size says how large IP packets may be, in bytes.
type Size struct {
	Own     int `json:"own"`     // MTU of the asker's own interface
	Largest int `json:"largest"` // that passed; 0: none
	// MTU that the network reported for a packet that was too large; 0: it reported nothing
	Told int `json:"told,omitempty"`
	// Above says what happened to a packet one byte larger than Largest.
	Above Above `json:"above,omitempty"`
}

// Above is what happened to a packet that is too large.
type Above string

// ICMP informed the sender (Section 4 of RFC 1191 and RFC 8201), nothing came back, or it passed.
const (
	Refused  Above = "refused"
	Vanished Above = "vanished"
	Passed   Above = "passed"
)

// Bulk is the result of sending many bytes there and back.
type Bulk struct {
	Bytes int64         `json:"bytes"`
	Took  time.Duration `json:"took"`
	Error string        `json:"error,omitempty"`
}
