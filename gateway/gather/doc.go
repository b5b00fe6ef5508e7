// Package gather makes one archive of what is known about gateways and nodes, for somebody who
// looks for a fault elsewhere, and reads it again.
//
// Whoever collects adds an Entry for each answer, and a Missing for each question without one, so
// that nothing half done looks done. Secrets never get in: nobody asks for them, and Write removes
// what looks like one: a key that no field calls public, a token, a password.
//
// With Pseudonyms, nothing has its address or name. A pseudonym is the same in the whole archive,
// and its key exists only while that is written. Which field of JSON, or key of a log line, has a
// sentence or a word of culvert's is a list (words.go): the text of any other field is a name.
// Sentences keep their words, except addresses, host names, paths, what stands in quotation marks,
// and each name that was found anywhere. So a name that stands in no field, and without quotation
// marks in a sentence, stays.
package gather
