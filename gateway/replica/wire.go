package replica

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"culvert/nat"
)

// A kind is the kind of a message.
type kind uint8

const (
	kindHello  kind = iota + 1 // a hello, as JSON
	kindFacts                  // Options.Facts
	kindBlocks                 // blocks of nat.Feed
	kindMark                   // 8 bytes; the ack repeats them
	kindAck                    // an ack, as JSON
	kindCopy                   // why
	kindNotice                 // Replica.Tell
)

const (
	headSize = 4
	// maxBody is the maximum length of a message in bytes, except for facts, which grow with the
	// number of nodes. A longer one violates the protocol.
	maxBody, maxFacts = nat.RecordWrite, 4 << 20
	// MaxNotice is the maximum length of a message of Tell in bytes.
	MaxNotice = 4096

	// greetTime is how long the other end may take for the handshake, and how long for its hello.
	greetTime = 3 * time.Second
	// stallTime is how long the other end may take to read, and to acknowledge.
	stallTime = 5 * time.Second
)

// errProtocol means that the other end has violated the protocol.
var errProtocol = errors.New("protocol violation by the other end")

// most is the length of the longest message of this kind.
func (k kind) most() int {
	if k == kindFacts {
		return maxFacts
	}
	return maxBody
}

// A hello is the first message of each end.
type hello struct {
	Version string    `json:"version"` // of its program
	Config  string    `json:"config"`  // identity of its configuration
	Name    string    `json:"name"`    // of the replica; another connection of the same name replaces this one
	Clock   time.Time `json:"clock"`
	Visit   bool      `json:"visit,omitempty"`   // it wants no copy, and only sends a notice
	NoTable bool      `json:"noTable,omitempty"` // it has neither led nor received a whole copy

	Age time.Duration `json:"age,omitempty"` // since its table equalled that of the leading replica; 0 = it leads
}

// An ack is the follower's answer to a mark.
type ack struct {
	Mark     uint64            `json:"mark"`
	Entries  int               `json:"entries"` // connections in its table
	Whole    bool              `json:"whole"`   // a full copy was complete, and none has started since
	NotTaken map[string]uint64 `json:"notTaken,omitempty"`
	Config   string            `json:"config,omitempty"` // identity of its configuration now
}

// A wire sends and receives messages. One goroutine at a time may receive; any may send.
type wire struct {
	conn net.Conn
	head [headSize]byte
	body []byte // of the message received last

	mu   sync.Mutex
	sent []byte // +checklocks:mu
}

// send sends a message.
func (w *wire) send(k kind, body []byte) error {
	if len(body) > k.most() {
		return fmt.Errorf("%w: a message of %d bytes", errProtocol, len(body))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = binary.BigEndian.AppendUint32(w.sent[:0], uint32(k)<<24|uint32(len(body)))
	w.sent = append(w.sent, body...)
	w.conn.SetWriteDeadline(time.Now().Add(stallTime))
	_, err := w.conn.Write(w.sent)
	return err
}

func (w *wire) sendJSON(k kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.send(k, body)
}

// receive returns the next message. Its body is valid until the next call.
func (w *wire) receive(within time.Duration) (kind, []byte, error) {
	w.conn.SetReadDeadline(time.Now().Add(within))
	if _, err := io.ReadFull(w.conn, w.head[:]); err != nil {
		return 0, nil, err
	}
	head := binary.BigEndian.Uint32(w.head[:])
	k, n := kind(head>>24), int(head&(1<<24-1))
	if n > k.most() {
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", errProtocol, n)
	}
	if cap(w.body) < n {
		w.body = make([]byte, n)
	}
	w.body = w.body[:n]
	_, err := io.ReadFull(w.conn, w.body)
	return k, w.body, err
}

// receiveHello returns the other end's hello.
func (w *wire) receiveHello() (other hello, err error) {
	k, body, err := w.receive(greetTime)
	if err != nil {
		return hello{}, err
	}
	if k != kindHello || json.Unmarshal(body, &other) != nil {
		return hello{}, fmt.Errorf("%w: message %d in the place of a hello", errProtocol, k)
	}
	return other, nil
}
