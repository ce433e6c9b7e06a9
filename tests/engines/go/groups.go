package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// transform writes each value in capitals to the same partition of another topic, with a GroupTransactSession as its
// documentation has it. Records whose promise failed are aborted and read again; what is fatal ends the program.
func transform(address, input, output, group, transactionalID string) error {
	options, err := brokers(address)
	if err != nil {
		return err
	}
	options = append(options,
		kgo.TransactionalID(transactionalID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(input),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(3*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.RecordDeliveryTimeout(30*time.Second),
	)
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for {
		fetches := session.PollRecords(ctx, 100)
		for _, each := range fetches.Errors() {
			fmt.Fprintln(os.Stderr, "fetch:", each.Err)
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{
				Topic:     output,
				Partition: record.Partition,
				Key:       record.Key,
				Value:     []byte(strings.ToUpper(string(record.Value))),
			}, promise.Promise())
		})
		committed, err := session.End(ctx, promise.Err() == nil)
		if err != nil {
			return err
		}
		if !committed {
			fmt.Fprintln(os.Stderr, "aborted:", promise.Err())
		}
	}
}

// count prints each record that a member of a group gets, and commits it when the next ones are asked for. The protocol
// of the group is "classic" or "consumer" (KIP-848), in which the broker says how long a session is.
func count(address, input, group, protocol string) error {
	options, err := brokers(address)
	if err != nil {
		return err
	}
	options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(input), kgo.DisableAutoCommit())
	if protocol == "consumer" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer())
	} else {
		options = append(options, kgo.SessionTimeout(3*time.Second), kgo.HeartbeatInterval(500*time.Millisecond))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	for {
		// Bounded: a commit that the broker's end has caught is repeated also if there is nothing more to read.
		polling, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := client.PollRecords(polling, 100)
		cancel()
		var failed error
		fetches.EachRecord(func(record *kgo.Record) {
			line := map[string]any{"partition": record.Partition, "offset": record.Offset, "value": string(record.Value)}
			if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
				failed = err
			}
		})
		if failed != nil {
			return failed
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "commit:", err)
		}
	}
}
