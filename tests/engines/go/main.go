// Programs with franz-go for tests/engines: a producer that does what it is told, and a consume-transform-produce loop.
//
//	franz produce ADDRESS TRANSACTIONAL-ID
//	franz transform ADDRESS INPUT OUTPUT GROUP TRANSACTIONAL-ID
//	franz count ADDRESS INPUT GROUP PROTOCOL
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch arguments := os.Args[2:]; os.Args[1] {
	case "produce":
		err = produce(arguments[0], arguments[1])
	case "transform":
		err = transform(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
	case "count":
		err = count(arguments[0], arguments[1], arguments[2], arguments[3])
	default:
		err = fmt.Errorf("no such program: %s", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ended:", err)
		os.Exit(3)
	}
}
