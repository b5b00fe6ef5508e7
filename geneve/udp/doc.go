// Package udp is a UDP socket that receives and sends in batches: recvmmsg and
// sendmmsg with the Linux offloads UDP_GRO and UDP_SEGMENT. The Geneve endpoint
// and the WireGuard transport are built on it.
//
// A train is a row of datagrams of one size (the last may be shorter) between
// the same two sockets. UDP_GRO hands over a received train as one message,
// UDP_SEGMENT sends one with a single pass through the kernel's stack; one
// system call moves several messages. Both offloads are probed when the socket
// is opened and replaced by single datagrams where the kernel has none; a train
// that the kernel refuses later on (a device without checksum offload, a path
// MTU below the segment size) is sent again as single datagrams and counted.
//
// Nobody reports losses further along the path; TrainProbe detects them, with probes that its owner
// sends.
//
// # Goroutines and ownership
//
// One goroutine at a time may call Receive. Every sending goroutine makes a Sender of its own;
// Senders of one socket may be used at the same time. Any goroutine may call Wake, Poll, Close and
// Stats. Buffers belong to the caller, which lends them for the duration of the call. In steady
// state neither Receive nor Send allocates: message headers are built once and reused.
//
// # Waking a receiver
//
// A goroutine blocked in Receive often has a second source of work, a queue. The producer first
// puts into the queue and then calls Wake. The receiver checks its queue after every return of
// Receive:
//
//	for {
//		drain(queue)
//		n, err := socket.Receive(messages) // ErrWoken: only look at the queue
//		…
//	}
//
// No wake-up is lost: a Wake that finds nobody blocked makes the next Receive return ErrWoken at
// once, and Receive clears the condition before it returns, so that what was put into the queue
// before a swallowed Wake is visible to the check that follows. Several Wakes may be answered by
// one ErrWoken, and a receiver may be woken for an entry that it has already seen.
package udp
