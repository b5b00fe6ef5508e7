package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"culvert/integration/lab"
	"culvert/integration/lab/fault"
)

// request is a client's only message to a holder; a request to execute is sent with the three
// standard files.
type request struct {
	Do   verb     `json:"do"`
	Host string   `json:"host,omitempty"` // of doExec and doRestart
	Args []string `json:"args,omitempty"` // a command, or the names of faults
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`
	TTY  bool     `json:"tty,omitempty"` // standard input is a terminal for this command only
}

// verb is the kind of a request.
type verb string

const (
	doStatus  verb = "status"
	doExec    verb = "exec"
	doBreak   verb = "break"
	doMend    verb = "mend"
	doRestart verb = "restart"
)

// response is the holder's only message back.
type response struct {
	Error  string  `json:"error,omitempty"`
	Code   int     `json:"code"` // of the command, as in a shell
	Status *Status `json:"status,omitempty"`
}

const maxRequest = 1 << 20 // bytes; environments are large

// server answers the clients of a lab that is up.
type server struct {
	*fault.Lab
	turn sync.Mutex // one client at a time changes or describes the lab
}

// Serve calls listening and answers clients until ctx is done, and returns when none changes the
// lab any more.
func Serve(ctx context.Context, of *fault.Lab, listening func()) error {
	l := &server{Lab: of}
	if err := l.writeHosts(); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(l.Dir, socketFile)})
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	defer l.turn.Lock() // clients that come now wait until the lab has ended
	listening()
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		go func() {
			defer conn.Close()
			json.NewEncoder(conn).Encode(l.answer(ctx, conn))
		}()
	}
}

func (l *server) answer(ctx context.Context, conn *net.UnixConn) response {
	r, files, err := receive(conn)
	for _, f := range files {
		defer f.Close()
	}
	if err != nil {
		return response{Error: err.Error()}
	}
	if r.Do == doExec {
		code, err := l.execute(conn, r, files)
		if err != nil {
			return response{Error: err.Error()}
		}
		return response{Code: code}
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	switch r.Do {
	case doBreak:
		err = l.Break(ctx, r.Args...)
	case doMend:
		err = l.Mend(ctx, r.Args...)
	case doRestart:
		err = l.Restart(ctx, r.Host)
	}
	if err != nil {
		return response{Error: fmt.Sprintf("%s: %v", r.Do, err)}
	}
	return response{Status: l.status()}
}

// execute runs the command until it ends. Each byte that the client sends meanwhile is a signal for
// it; if the client disappears, the command is ended.
func (l *server) execute(conn *net.UnixConn, r *request, files []*os.File) (code int, err error) {
	h := l.Host(r.Host)
	if h == nil {
		return 0, fmt.Errorf("exec: %w", lab.NoHost(r.Host))
	}
	if len(files) != 3 || len(r.Args) == 0 {
		return 0, errors.New("exec: no command")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.Env, cmd.Dir = append(r.Env, "PS1="+h.Name+"# "), r.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !r.TTY, Setsid: r.TTY, Setctty: r.TTY}
	err = h.Do(func() error {
		if err := l.enter(h); err != nil {
			return err
		}
		return cmd.Start()
	})
	for _, f := range files {
		f.Close() // only the command keeps them: when it ends, so does its terminal
	}
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		signal := make([]byte, 1)
		for {
			_, err := conn.Read(signal)
			select {
			case <-ended:
				return
			default:
			}
			if err != nil {
				unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
				return
			}
			unix.Kill(-cmd.Process.Pid, unix.Signal(signal[0]))
		}
	}()
	cmd.Wait() // what it returns is in ProcessState
	close(ended)
	return exitCode(cmd.ProcessState), nil
}

// exitCode is a process's exit status as shells give it.
func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// receive reads a request and the files that come with it.
func receive(conn *net.UnixConn) (*request, []*os.File, error) {
	buffer := make([]byte, maxRequest)
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := conn.ReadMsgUnix(buffer, oob)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: %w", err)
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, fmt.Errorf("lab: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, files, fmt.Errorf("lab: %w", err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "client"))
		}
	}
	// The rest of a long request follows without files.
	r := new(request)
	rest := io.MultiReader(strings.NewReader(string(buffer[:n])), conn)
	if err := json.NewDecoder(io.LimitReader(rest, maxRequest)).Decode(r); err != nil {
		return nil, files, fmt.Errorf("lab: bad request: %w", err)
	}
	return r, files, nil
}

// Exec runs a command inside a host of the lab that is up, with this process's
// standard files, environment and folder, and returns its exit status.
func Exec(host string, args []string) (code int, err error) {
	conn, err := dialHolder()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	dir, err := os.Getwd()
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	r := request{Do: doExec, Host: host, Args: args, Env: os.Environ(), Dir: dir, TTY: IsTerminal(0)}
	var t *terminal
	files := []int{0, 1, 2}
	if r.TTY {
		if t, err = openTerminal(); err != nil {
			return 0, fmt.Errorf("exec: %w", err)
		}
		files = t.files()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	n, _, err := conn.WriteMsgUnix(text, unix.UnixRights(files...), nil)
	if err == nil && n < len(text) {
		_, err = conn.Write(text[n:])
	}
	if err == nil && t != nil {
		if err = t.connect(); err == nil {
			defer t.close() // it waits for what connect starts
		}
	}
	if err != nil {
		return 0, fmt.Errorf("exec: %w", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		for s := range signals {
			conn.Write([]byte{byte(s.(syscall.Signal))})
		}
	}()
	answer, err := readResponse(conn)
	if err != nil {
		return 0, err
	}
	return answer.Code, nil
}
