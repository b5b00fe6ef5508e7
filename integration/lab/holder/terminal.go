package holder

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal for a command in a host, between this process's terminal and the
// command. It lets a shell there control its own jobs.
type terminal struct {
	master, slave *os.File
	before        *unix.Termios // of this process's terminal
	resized       chan os.Signal
	printed       chan struct{} // closed when the output of the command has been copied
}

// IsTerminal reports whether a file of this process is a terminal.
func IsTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// openTerminal makes a pseudo-terminal of the size of this process's terminal.
func openTerminal() (*terminal, error) {
	t := &terminal{resized: make(chan os.Signal, 1), printed: make(chan struct{})}
	var err error
	if t.before, err = unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		return nil, err
	}
	if t.master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(int(t.master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(t.master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		t.slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = unix.IoctlSetTermios(int(t.slave.Fd()), unix.TCSETS, t.before)
	}
	if err != nil {
		t.master.Close()
		return nil, fmt.Errorf("pseudo-terminal: %w", err)
	}
	t.resize()
	return t, nil
}

// files are the three standard files of the command: the pseudo-terminal replaces each that is a
// terminal.
func (t *terminal) files() []int {
	files := []int{0, 1, 2}
	for i := range files {
		if IsTerminal(i) {
			files[i] = int(t.slave.Fd())
		}
	}
	return files
}

// connect copies input and output, once the command has the slave. Keys pass through unchanged: the
// command's terminal interprets Ctrl-C.
func (t *terminal) connect() error {
	t.slave.Close()
	raw := *t.before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR |
		unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(0, unix.TCSETS, &raw); err != nil {
		return err
	}
	signal.Notify(t.resized, unix.SIGWINCH)
	go func() {
		for range t.resized {
			t.resize()
		}
	}()
	go io.Copy(t.master, os.Stdin)
	screen := os.Stdin
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if IsTerminal(int(f.Fd())) {
			screen = f
			break
		}
	}
	go func() {
		defer close(t.printed)
		io.Copy(screen, t.master) // until EIO: the command, which owns the terminal, has ended
	}()
	return nil
}

func (t *terminal) resize() {
	if size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err == nil {
		unix.IoctlSetWinsize(int(t.master.Fd()), unix.TIOCSWINSZ, size)
	}
}

// close prints the remaining output and restores this process's terminal.
func (t *terminal) close() {
	<-t.printed
	signal.Stop(t.resized)
	close(t.resized)
	t.master.Close()
	unix.IoctlSetTermios(0, unix.TCSETSW, t.before)
}
