package attack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// questioner asks one question over each connection. It keeps those without an answer, because an
// answer after the timeout is late but not lost.
type questioner struct {
	timeout    time.Duration
	unanswered []net.Conn
}

func (q *questioner) ask(conn net.Conn) error {
	if _, err := conn.Write(questionOver(conn)); err != nil {
		return errors.Join(err, conn.Close())
	}
	conn.SetReadDeadline(time.Now().Add(q.timeout))
	err := answerOver(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		q.unanswered = append(q.unanswered, conn)
		return err
	}
	return errors.Join(err, conn.Close())
}

// late counts the answers that arrived late, and closes the connections.
func (q *questioner) late() (n int) {
	deadline := time.Now().Add(q.timeout)
	for _, conn := range q.unanswered {
		conn.SetReadDeadline(deadline)
		if answerOver(conn) == nil {
			n++
		}
		conn.Close()
	}
	q.unanswered = nil
	return n
}

func questionOver(conn net.Conn) []byte {
	return fmt.Appendf(nil, "question from %s", conn.LocalAddr())
}

func answerOver(conn net.Conn) error {
	question := questionOver(conn)
	answer := make([]byte, 2*len(question))
	n, err := conn.Read(answer)
	if err == nil && !bytes.Equal(answer[:n], question) {
		err = fmt.Errorf("answer %q to %q", answer[:n], question)
	}
	return err
}
