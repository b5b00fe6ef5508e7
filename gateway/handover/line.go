package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Version is the version of the protocol. Another version is refused at the start; fields may be
// added to an Offer or a Cut without a new version.
const Version = 1

// Kind is the kind of a message.
type Kind uint32

// The messages, in order; Refusal, with its reason as text, may replace any of them.
const (
	KindOffer Kind = iota + 1
	KindRecords
	KindStanding
	KindReady
	KindCut
	KindForwarding
	KindDone
	KindRefusal
)

// Offer is the first message of the old process.
type Offer struct {
	Version  string   `json:"version"`  // of its program
	Sockets  []Socket `json:"sockets"`  // in the order of the descriptors
	Identity []byte   `json:"identity"` // see package state
	Session  bool     `json:"session"`  // it has a session with the peer,
	Answers  bool     `json:"answers"`  // in which the peer answers

	Local netip.Addr `json:"local,omitzero"` // our address that the peer sends to
}

// Socket is an open descriptor for the new process.
type Socket struct {
	Name string `json:"name"`
	At   string `json:"at"` // its address, as configured or as bound
}

// Cut is the last message of the old process before it stops for good.
type Cut struct {
	Stopped int64     `json:"stopped"` // time of the stop, in nanoseconds of CLOCK_MONOTONIC
	Spoke   int64     `json:"spoke"`   // Relay.Spoke
	Nodes   []Station `json:"nodes"`
	Paths   []Path    `json:"paths,omitempty"` // those that carry less than configured
}

// Path is the path MTU to a node, or to the peer if Node is empty.
type Path struct {
	Node   string `json:"node,omitempty"`
	Size   int    `json:"size"` // of the largest packet
	Way    uint8  `json:"way"`  // see package pathmtu
	OneWay bool   `json:"oneWay,omitempty"`
}

// Station is a node's neighbour entry in its tunnel.
type Station struct {
	Node  string     `json:"node"`
	MAC   string     `json:"mac"`
	VXLAN bool       `json:"vxlan,omitempty"` // it uses VXLAN, not Geneve
	Local netip.Addr `json:"local,omitzero"`  // our address that it sends to
}

const (
	headSize = 8
	// MaxBody is the maximum size of a message in bytes.
	MaxBody = 1 << 20
	maxFD   = 32
)

// Wire is the connection under a Line: a Unix socket, or a replacement within one process.
type Wire interface {
	net.Conn
	CloseRead() error
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, from *net.UnixAddr, err error)
	WriteMsgUnix(b, oob []byte, to *net.UnixAddr) (n, oobn int, err error)
	SyscallConn() (syscall.RawConn, error)
}

// Line is one end of the conversation.
type Line struct {
	conn  Wire
	shut  bool
	begun bool // something has arrived
}

// NewLine returns a Line over conn.
func NewLine(conn Wire) *Line { return &Line{conn: conn} }

// Close ends the conversation.
func (l *Line) Close() error { return l.conn.Close() }

// Silence makes all waiting for the other end fail. This end can still refuse.
func (l *Line) Silence() { l.conn.CloseRead() }

// Peer returns the process ID of the other end; 0 is unknown.
func (l *Line) Peer() (pid int) {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		if c, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(c.Pid)
		}
	})
	return pid
}

// Send sends a message, with descriptors, which the caller keeps.
func (l *Line) Send(k Kind, body []byte, within time.Duration, fds ...int) error {
	l.conn.SetWriteDeadline(time.Now().Add(within))
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(k)), uint32(len(body)))
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	_, _, err := l.conn.WriteMsgUnix(head, rights, nil)
	if err == nil && len(body) > 0 { // an empty write would fail at an end that was shut since
		_, err = l.conn.Write(body)
	}
	return err
}

// Decode decodes what SendJSON has sent.
func Decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrStrange, err)
	}
	return nil
}

// SendJSON is Send of a value.
func (l *Line) SendJSON(k Kind, v any, within time.Duration, fds ...int) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.Send(k, body, within, fds...)
}

// Refuse tells the other end why this one ends the conversation.
func (l *Line) Refuse(cause error) { l.Send(KindRefusal, []byte(cause.Error()), time.Second) }

// ErrRefused means that the other end has ended the conversation.
var ErrRefused = errors.New("the other gateway refuses")

// ErrStrange means that the other end has violated the protocol.
var ErrStrange = errors.New("protocol violation by the other process")

// Receive returns the next message, and the descriptors of an Offer, which comes first; descriptors
// of others are closed. The error of a Refusal is ErrRefused; io.EOF means that the other end is
// gone.
func (l *Line) Receive(within time.Duration) (Kind, []byte, []*os.File, error) {
	l.conn.SetReadDeadline(time.Now().Add(within))
	return l.receive()
}

// Last is Receive for the message that decides who forwards. It shuts the Line: nothing can be sent
// afterwards, and the other end gets an error if it tries.
func (l *Line) Last(within time.Duration) (Kind, error) {
	l.conn.SetReadDeadline(time.Now().Add(within))
	k, _, _, err := l.receive()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.shut = true
		l.conn.CloseRead() // unix(7): from now on the other end's writes fail
		l.conn.SetReadDeadline(time.Time{})
		if came, _, _, e := l.receive(); e == nil {
			return came, nil
		}
	}
	return k, err
}

func (l *Line) receive() (k Kind, body []byte, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	head, rights := make([]byte, headSize), make([]byte, syscall.CmsgSpace(4*maxFD))
	for got := 0; got < headSize; {
		n, oobn, _, _, err := l.conn.ReadMsgUnix(head[got:], rights)
		files = append(files, filesOf(rights[:oobn])...)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return 0, nil, files, err
		}
		got += n
	}
	k, size := Kind(binary.BigEndian.Uint32(head)), binary.BigEndian.Uint32(head[4:])
	again := k == KindOffer && l.begun
	if l.begun = true; size > MaxBody || k == 0 || k > KindRefusal || again {
		return 0, nil, files, fmt.Errorf("%w: message %d of %d bytes", ErrStrange, k, size)
	}
	body = make([]byte, size)
	if _, err := io.ReadFull(l.conn, body); err != nil {
		return 0, nil, files, err
	}
	if k != KindOffer {
		closeAll(files)
		files = nil
	}
	if k == KindRefusal {
		return 0, nil, files, fmt.Errorf("%w: %q", ErrRefused, body)
	}
	return k, body, files, nil
}

// Shut reports whether Last has shut the Line.
func (l *Line) Shut() bool { return l.shut }

// Want is Receive for one kind.
func (l *Line) Want(k Kind, within time.Duration) ([]byte, []*os.File, error) {
	is, body, files, err := l.Receive(within)
	if err == nil && is != k {
		closeAll(files)
		return nil, nil, fmt.Errorf("%w: message %d in the place of %d", ErrStrange, is, k)
	}
	return body, files, err
}

// filesOf returns the descriptors in control messages, with close-on-exec set.
func filesOf(rights []byte) (files []*os.File) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "socket of the previous gateway"))
		}
	}
	return files
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
